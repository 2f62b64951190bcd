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
"""
