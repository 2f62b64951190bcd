"""The messages that Kafka defines by schemas: the schemas, and one reader and writer for them.

`schemas/` holds the fields of each message and version, in the text form that `schema` describes; they are generated
from Kafka's own definitions. A message is a dict: the records of internal topics need every field of their version, a
request or response fills what is missing with its default. Elements and bytes are bounded while a message is read,
because a stranger may have sent it.

`_wire` is compiled and knows the bytes: it reads and writes by plans, which it makes of a schema once a version. As
nested Python functions the same took four to eleven times as long.
"""
