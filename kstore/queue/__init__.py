"""The durable queue: the face of ``queue.Queue`` over two logs, with leases."""
