"""A door: Kafka's clients read from and write to a store over Kafka's own protocol. No other part knows of it.

faces       door
bytes       frames (sizes and headers)  apis (the closed list)  errors (codes)
threads     server (accepts, looks after idle ones)  connection (one thread each)  memory (the budget)  guard (who may)
handlers    call  served  waiting      what a handler gets: the request, the door, a way to wait
            cluster  topics            one module a subject
            parts  parking             what those of logs share: a partition's log, waiting for one of many to grow
            fetching  fetch_reply  offsets  producing
groups      group (the rules, pure)  groups (locks, and requests that wait)
"""
