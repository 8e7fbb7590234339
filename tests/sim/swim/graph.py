"""The graph of links of a group with partial views (docs/specs/swim.md 7)."""

from tests.sim.swim.world import World


def links(world: World) -> dict[int, set[int]]:
    """Return whom each running member tracks, as far as those run and track it too."""
    running = {process.core.info.id: process for process in world.running}
    tracked = {node: {peer.id for peer in process.core._node.members.live} for node, process in running.items()}
    return {
        node: {other for other in others if other in tracked and node in tracked[other]}
        for node, others in tracked.items()
    }


def largest(world: World) -> float:
    """Return the share of the running members that the largest component has."""
    graph, seen, best = links(world), set[int](), 0
    for start in graph:
        if start in seen:
            continue
        reached, todo = {start}, [start]
        while todo:
            fresh = graph[todo.pop()] - reached
            reached |= fresh
            todo.extend(fresh)
        seen |= reached
        best = max(best, len(reached))
    return best / len(graph)


def symmetrical(world: World) -> bool:
    """Say whether nobody tracks who does not track it."""
    graph = links(world)
    return all(len(process.core._node.members) == len(graph[process.core.info.id]) for process in world.running)
