"""A release: ``make release`` builds a source archive and wheels, and tries each wheel as a user would.

pythons    the Pythons of this machine that can build kstore
archives   builds the archives, the same bytes every time, and says what is wrong with their contents
readme     runs the examples of a page; needs the standard library alone
trial      installs a wheel where no compiler is, measures it, and runs the first pages there
__main__   the command
"""
