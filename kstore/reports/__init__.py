"""Reports on directories of logs: one page to send, and the same numbers as JSON.

Why
===

`gathering` reads files, `document` turns what it found into one dictionary of JSON values, and `page` draws that
dictionary: so the page and the JSON cannot have different numbers, and both hide the same things. The numbers are
those of `upkeep/stats` and `upkeep/verify`, the plan after damage is that of `upkeep/recover`. What else a report
needs it learns in the same pass: `upkeep/observed` receives each run and each other batch that `upkeep/stats` counts.
All of it takes fixed memory, and what happens per batch or record of a run is compiled. One log is one task, so the
command examines several in other processes; the function does not, because a library that starts processes surprises
its caller.

- **Keys in 1 MiB a log**, whatever their number: a HyperLogLog of 16,384 registers, whose estimator (Ertl's) needs no
  table of biases; counters of 1,024 frequent keys after Misra and Gries, which know how much too low they are; and a
  sample of up to 8,192 keys, chosen by their hashes, with the bytes of all their records and of the last one. That
  ratio is what a compaction would free; a sample of records instead would miss the later ones of their keys. Hashes
  have no secret, so that partitions can be added up and two reports compared; keys made to collide are bounded by a
  limit on every search.
- **Codecs are measured, not modelled.** Batches of the 50 largest logs are compressed again; ratios from entropies or
  from one record would be wrong for exactly the small batches for which it matters.
- **Nothing leaks by accident.** Bytes of records never enter the document unless asked for. At a damaged place they
  might stand where a header should, so even a header is shown only if it looks like one: two of three fields that a
  text cannot have.
- **No name takes effect as markup.** Jinja2 escapes, `visible` writes characters without a shape as numbers before
  that, and the page's own policy forbids scripts and requests.
- **Rejected:** a script for sorting (the page must work where scripts are forbidden, and a mail filter must have
  nothing to suspect), and pictures of a plotting library (megabytes, and its own way of escaping).
- The folder is `reports/`, because a package `kstore.report` would hide the function of that name once it is
  imported.
"""
