"""Tools that show that the crash tests find the bugs they should find."""
