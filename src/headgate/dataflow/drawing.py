"""Drawing: a dataflow as SVG: streams and nodes from left to right, a frame around each nest."""

from __future__ import annotations

from html import escape

from headgate.dataflow.nodes import FlowGraph

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 120, 34, 46, 22, 24
STYLE = (
    "text{font:12px sans-serif;text-anchor:middle;dominant-baseline:middle}"
    ".node{fill:#e8f0fe;stroke:#3367d6}.stream{fill:#fff;stroke:#777}"
    ".nest{fill:none;stroke:#3367d6;stroke-dasharray:4 3}path{fill:none;stroke:#555}"
)


def drawn(name: str, graph: FlowGraph) -> str:
    """The graph as one SVG element."""
    places = _places(graph)
    boxes = [_box(one, *place, one not in graph.streams) for one, place in places.items()]
    columns = 1 + max(column for column, _ in places.values())
    rows = 1 + max(row for _, row in places.values())
    width = 2 * MARGIN + columns * (WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + rows * (HEIGHT + GAP_Y) - GAP_Y
    parts = [*_nests(graph, places), *_lines(graph, places), *boxes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">'
        f"<title>dataflow {escape(name)}</title><style>{STYLE}</style>{''.join(parts)}</svg>"
    )


def _places(graph: FlowGraph) -> dict[str, tuple[int, int]]:
    """By name: the column of each stream and node, behind all that it waits for, and its row."""
    columns: dict[str, int] = dict.fromkeys(graph.sources, 0)
    for node in graph.order:
        columns[node.name] = 1 + max(columns[stream.name] for stream in node.streams)
        columns.update((stream.name, columns[node.name] + 1) for stream in node.gives)
    used: dict[int, int] = {}
    found = {}
    for one, column in columns.items():
        found[one] = (column, used.get(column, 0))
        used[column] = used.get(column, 0) + 1
    return found


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return MARGIN + place[0] * (WIDTH + GAP_X), MARGIN + place[1] * (HEIGHT + GAP_Y)


def _box(name: str, column: int, row: int, is_node: bool) -> str:
    left, top = _corner((column, row))
    kind, corners = ("node", 4) if is_node else ("stream", HEIGHT // 2)
    return (
        f'<rect class="{kind}" x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" '
        f'rx="{corners}"/><text x="{left + WIDTH // 2}" y="{top + HEIGHT // 2}">'
        f"{escape(name)}</text>"
    )


def _lines(graph: FlowGraph, places: dict[str, tuple[int, int]]) -> list[str]:
    joined = [(stream.name, node.name) for node in graph.order for stream in node.streams]
    joined += [(node.name, stream.name) for node in graph.order for stream in node.gives]
    found = []
    for first, last in joined:
        (left, top), (right, bottom) = _corner(places[first]), _corner(places[last])
        begin, middle = left + WIDTH, (left + WIDTH + right) // 2
        top, bottom = top + HEIGHT // 2, bottom + HEIGHT // 2
        found.append(
            f'<path d="M{begin} {top} C{middle} {top} {middle} {bottom} {right} {bottom}"/>'
        )
    return found


def _nests(graph: FlowGraph, places: dict[str, tuple[int, int]]) -> list[str]:
    found = []
    for unit in graph.units:
        if len(unit.nodes) > 1:
            corners = [_corner(places[node.name]) for node in unit.nodes]
            left, top = (min(one) - 9 for one in zip(*corners, strict=True))
            right, bottom = (max(one) + 9 for one in zip(*corners, strict=True))
            found.append(
                f'<rect class="nest" x="{left}" y="{top}" width="{right - left + WIDTH}" '
                f'height="{bottom - top + HEIGHT}" rx="8"/>'
            )
    return found
