"""Planning: from events as they arrived to the serial order and the operations in it."""
