"""Consistent copies of a live store, and new stores made from them (docs/backup.md).

Why
===

**The moment** of a backup is an instant: the locks of all logs are held at once, and no topic can change, while the
ends of the logs are read in memory and the files that the target lacks are opened. No append, marker, commit,
retention, swap or move of a queue is half in it. So a backup holds exactly what a kill at that instant would leave,
and a restore ends with the recovery that follows a kill: decided transactions get their missing markers, open ones
are aborted. Rejected: reading the ends one log after another, journals first. It needs a rule for each pair of logs
that refer to one another, and every new use of several logs would need another rule.

- **The locks are taken with a time limit**, and all given back if one is not free. A thread may hold the lock of one
  log and wait for that of another, whose tail it parks, so a backup that waited forever could be a deadlock. They
  are held in a thread of its own, because Ctrl-C must not come between a lock and its release.
- **The moment is short.** What is sealed is copied before it, in rounds, until at most 64 segments are left. An open
  file outlives its name, so retention and compaction continue after it. A truncation changes files in place: it
  starts the backup again.
- **What is not `"sync"` is flushed after the moment**, up to its ends, and before the manifest: a backup never holds
  more than the store keeps through a power cut.
- **A file's name in the target is its content**: base offset, size, CRC. So it is written once, whatever manifest
  names it, and no file is ever replaced. A sealed segment is known to be unchanged by the inode, size and time of its
  `.log`, unless the time is too recent to be believed; otherwise it is read, and its CRC decides. A file that the
  target cannot have yet is copied by the kernel (`copy_file_range`, which shares the blocks on btrfs and XFS), and
  the CRC is that of the copy. Rejected: hard links into the target. A truncation, or rot, in the store would change
  the backup too.
- **A place is for the backups of one store.** Files of a store or a log there would be mixed with those of backups,
  so such a place is refused, and a place of backups is not opened as a store. A store is the same if its
  `meta.properties` is, which a restore keeps, or if it has a topic of the same id: it may have been handed to a
  broker. Rejected: a name for each store in the target. A restore would have to be told which one.
- **Names are on disk before the manifest.** A backup that was killed may have left files whose names only the page
  cache holds. So a backup syncs the directory of every log of which it names a file that the last manifest does not,
  then the target, and only then writes the manifest. The target's own name is synced when it begins, also if it
  exists.
- **What a segment has gained is one more piece.** A backup compares the pieces that the last manifest names with the
  segment, by CRC, and copies the rest; so does a replicator when it starts, and after a truncation. From then on it
  knows which bytes cannot have changed: those of the same `LogSegment` object, if its log was not cut. Pieces are
  merged like the runs of an LSM tree, by size classes, so a byte is copied a few times and a segment has a few dozen
  pieces at most. No merge makes more than 64 MiB, because it delays the next manifest. Rejected: replacing the pieces
  by the sealed segment as one file. With segments of 1 GiB that delays it for seconds.
- **A replicator is backups in succession** by one copier: each round is a moment and a manifest, so there is one way
  to copy, and a restore sees no difference. It is woken by the first append to a log after a round began, which takes
  its watch off the log again, so that all other appends cost nothing. A log that is as at the moment before is
  recognised by its ends, its map of segments and its cut count, and its entry is the same object; if the new manifest
  says what the last one said, it is not written.
- **What is removed, and when.** Old manifests go first, durably; then what only they have named, after an hour, for
  restores that have read them. Which files those are follows from the differences of successive manifests
  (`NamedFiles`). What a kill has left is found by listing the target, once, after the first complete round, which may
  still use it. If a manifest cannot be read, nothing is searched for. A manifest whose write failed may have arrived:
  what it names stays as if it had, and the next round writes a newer one, even if the store is as before.
- **A mirror is another way to copy a log, on purpose.** `kstore mirror` copies logs of which it has no lock, a
  broker's for instance, into a directory or an object store that is again a log, which brokers and Spark open; it
  knows no moment and no store. A backup holds all locks of its store, and what it makes is not a log but files named
  by content, which many moments share. What both need is shared: places and whole files (`files/remote`), and losses
  (`rules/losses`). Rejected: mirroring through a place of backups. It would copy each byte twice, and cannot be done
  for a broker's logs, which have no moment.
- **A backup makes way for appends.** With one at the disk's full speed, durable appends kept a tenth of their rate.
  So after each 1 MiB it syncs it, looks whether any log has grown, and if so waits for 15 times as long as that took.
  Without appends it makes no pauses. Only the first round of sealed segments and what follows the moment are copied
  in this way: both are of a fixed size, while later rounds copy what was appended during the one before, and would
  not end. A replicator makes none: its rounds are small, and its lag is a promise. Rejected: a limit of the rate,
  since no number fits all disks.
- **Several uploads at a time**, to anything but a disk: a request takes longer than its bytes do. `Copier` copies up
  to four sealed segments side by side, then up to four logs; the first failure stops the others, and the source's
  files stay open until all have ended. Each upload holds one piece of 8 MiB and the library's buffer. One at a time
  if the rate is limited, and on this machine's disks, where one copy is as fast as several.
- **What reads a backup is below `Log`** (`archive/`: manifests, places, and a file system that shows them), so that
  `Log` opens one by itself; it is loaded only for a path that is no log on this machine.
- **Not alongside a writer in another process.** Without the locks of all logs, a reader may see the commit marker of a
  transaction in one log, and in another log its end from before the marker: the restore would abort half of it.
- **A restore** checks every file, lets recovery check each active segment batch by batch, and compares the ends with
  the manifest's before the new directory gets its name. Where compaction stopped is not in a backup: it starts from
  the beginning.
- **A restore to an offset** aborts the transactions that it cuts in all logs. Each transaction has an epoch of its
  own (KIP-890), so an end marker that is cut off names it, and its commit markers elsewhere become abort markers, in
  place, before the store is recovered: recovery rebuilds the transaction indexes from there on. Rejected: appending
  an abort marker to the other logs. The commit marker before it has ended the transaction, so it would change
  nothing. A transaction whose epoch its marker shares, as before KIP-890, is refused.
- **In a shared store the locks are the turns**: first that of the root, so that no process makes a topic, then those
  of all logs in the order of their names. Each turn begins with what the other processes have done, and recovers the
  log if one of them died, so the moment is one of all processes. A process takes the turn of a log last and waits for
  nothing within it, so two backups cannot wait for each other. The turns are asked for with the same time limit,
  again and again, since the system has no such wait: a process that is stopped in its turn must not make this one
  keep those of all other logs. Slow work is done before: logs are opened and caught up with one by one. In "sync"
  another process may have written what it has not synced yet, so everything is flushed up to the moment's ends,
  whatever the durability.
- **What others did is noticed by ends and counts.** When segments come or go, a sharing process lists the directory
  again and has other `LogSegment` objects; nothing compacts a shared log, so as long as it was not cut the base
  offset tells which segment it is. The cut count is read in a turn after the copy, so a truncation by another process
  starts the backup again. Appends of other processes ring no bell here: a replicator compares the ends with those of
  its last moment, once an interval. Rejected: waiting for the system's notification. It reports every write of every
  process, also while a round runs.
"""
