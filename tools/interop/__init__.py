"""Kafka's own tools, a real broker and a real HDFS, on what kstore wrote (``make interop``; needs Java and Maven).

    pom.xml       which Kafka                java.py      its jars, fetched once; Java programs, run
    Dump.java     its dump tool, many times in one JVM    dump.py      the same from Python
    Broker.java   a broker that ends with its parent      broker.py    the same from Python
    Client.java   topics, producer, consumer              records.py   records as tests compare them
    Dfs.java      an HDFS that ends with its parent       dfs.py       the same from Python (hdfs-pom.xml: its jars)
    handover.py   puts partition directories that kstore wrote in place of a broker's own

All traffic is on loopback, on free ports; every program ends by itself after a time. The scenarios and comparisons are
in ``tests/interop/``.
"""
