"""Index spaces: what the numbers in an array count, said in its type.

Kernels and plans are arrays of int64, and the same number means another thing in another space. A
parameter, field or result of one of these types holds numbers of that space; what the array itself
is indexed by is in its name or beside it. To a checker they are all one type: they tell a reader,
and docs/index-spaces.md tells more of each. A test keeps both in step.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]

EventRows: TypeAlias = Int64s  # the events of a batch as they arrived
Elements: TypeAlias = Int64s  # the elements of the array columns of all events
Positions: TypeAlias = Int64s  # the events that run, in the serial order
Slots: TypeAlias = Int64s  # the rows of one table; -1 is no row
RowNumbers: TypeAlias = Int64s  # the rows that a batch touches, over all tables
TransactionNumbers: TypeAlias = Int64s  # the transactions of a plan
OperationNumbers: TypeAlias = Int64s  # one transaction's access to one row
UnitNumbers: TypeAlias = Int64s  # what runs at once: a slice of a transaction, or all of it
TaskNumbers: TypeAlias = Int64s  # what a thread takes at once
ChainNumbers: TypeAlias = Int64s  # units that write one row, one after another
Strata: TypeAlias = Int64s  # steps along the longest path of the graph
SectionNumbers: TypeAlias = Int64s  # pieces of a large batch
ThreadNumbers: TypeAlias = Int64s  # the threads of a crew
Words: TypeAlias = Int64s  # the bytes of rows, events and frames, eight by eight
