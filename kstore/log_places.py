"""Where logs are: a store, a broker's log directory, one partition, or a glob of these, local or remote."""
