"""The durable queue: the interface of ``queue.Queue`` over two logs, with leases."""
