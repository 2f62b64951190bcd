"""What backups are in their place: manifests, files named by their content, and a file system that reads them.

A backup is one manifest and the files that it names. `backup/` makes and restores them; this room knows what they are,
so that every command and `Store` can read one as it lies.

    manifest    which files make up a store at one moment
    target      where manifests and files are: a directory, an object store, HDFS
    restored    what a restore adds to the files: each log's state
    view        a backup as a file system: a store opens on it, and nothing is copied
    places      what a path means: a directory, a URL, a backup

Data passes from `target` through `manifest` to `view`, which answers with bytes of the files and with what `restored`
computes. A name follows from its file's content, so no file is ever replaced and backups share what is the same.
"""
