"""Tools that show that the crash tests would find what they are there to find."""
