"""Logs in a browser: pages on loopback about directories of logs, read-only.

app         the addresses, and what answers them
rendering   pages of models: templates and drawings
guard       who may ask: the host's name, the token, the cookie, the headers of every answer
places      the logs by their addresses: nothing else that a client sends leads to a file
survey      counts the logs in a thread, so that no page waits for it
checking    checks every byte of a log when a page is asked to
statements  what a page says was checked
segments    a segment's bytes from some position on: batches, index entries, damage
payload     bytes of records as text, JSON or hex
groups      consumer groups: their lag and positions
pages       what each page shows, as JSON
searching   searches records in a process of its own
search_pages  what a search is asked for
pictures    what only these pages draw
following   new records of a log, as events
server      uvicorn, the socket, the address to open

Why
===

`kstore ui` shows what a report shows, and below it what a report leaves out: each batch and each record. `pages`
makes a dictionary of JSON values for each address, which is the page's twin and all that its template sees. A page
reads what it shows when it is asked for, so it needs no notice of changes; what takes longer than a page may take is
counted by one thread (`survey`), which publishes results log by log.

- **A segment is read in parts.** A page starts at an index entry whose batch has the entry's offset, walks with every
  CRC checked, and ends after 100 batches or 4 MiB. A search after damage ends after 16 MiB, and the next page
  continues a little before that. So the page shows damage where `verify` does, and costs the same in a segment of 1
  GiB as in a small one. Without a usable index, a position far from the start is taken as the page's own links gave
  it.
- **What was not checked is not called sound.** `statements` says at the top of each page what was checked. `checking`
  runs `verify_log` when a user asks for it, one log at a time in one thread, at a rate, and keeps for each segment
  what its files were: what it has found holds as long as they are the same. What was appended to the last segment
  since does not matter; a hash of the last 64 KiB that were checked tells it from one that was cut and has grown
  again.
- **A search runs in a process of its own** (`searching`), because a regular expression can take forever over one
  value, with the interpreter's lock. The server kills it at the end of its time, or when its reader leaves or begins
  another one; a timer of the system ends it should the server be killed.
- **A POST names its origin.** Other servers of the machine are the same site to a browser, which sends them our
  cookie, and sends it with their forms too: so `guard` compares `Origin` with `Host`, with the port.
- **`guard` stands in front of everything** and knows nothing of logs: an answer that it does not let through has run
  none of our code. The cookie is not the token, which may be on a screen. Its name has the port, because cookies do
  not distinguish ports.
- **No part of an address is a path.** Logs are keys of a dictionary, segments and batches numbers. A directory whose
  name Kafka could not have given gets a hash as its address.
- **Texts are escaped as in a report**, and the policy allows no style or script inside a page. JSON is indented token
  by token, because a parser would round numbers and drop a key that occurs twice.
- **Sixty lines of script of our own**: they fetch a page again until its numbers are complete, and add the records
  that events bring. Rejected: HTMX, a dependency for these two functions.
- **Rejected:** a process for counting (a thread is enough for headers, and `kstore report --deep` has processes),
  pages that change a log (a browser is not the place to run a recovery), and access from other machines (ssh guards
  that better than we could).
"""
