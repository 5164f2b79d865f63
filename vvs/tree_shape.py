"""TreeShape: what fixes the shape of a draft tree."""

from dataclasses import dataclass

from vvs.errors import SettingsError


@dataclass(frozen=True)
class TreeShape:
    """An EAGLE-2 draft tree: ``k`` wide, ``depth`` expansions, ``total`` drafted nodes.

    ``k`` is both the children per node and the width of the frontier. The tree has ``total + 1`` nodes
    (the root is extra) and is at most ``depth + 1`` deep below the root. The published setting is k 10,
    depth 4, total 58.
    """

    k: int
    depth: int
    total: int
    coupled: bool = False
    """Drafted from logits with the noise that the target's tokens are drawn with (:mod:`vvs.noise`)."""

    def __post_init__(self) -> None:
        if self.k < 1 or self.depth < 0:
            raise SettingsError(
                f"a draft tree needs k >= 1 and depth >= 0, got k {self.k}, depth {self.depth}"
            )
        scored = self._scored
        if not 1 <= self.total <= scored:
            raise SettingsError(
                f"a draft tree of k {self.k} and depth {self.depth} scores {scored} nodes, "
                f"so total must lie in 1..{scored}, got {self.total}"
            )

    @property
    def _scored(self) -> int:
        """Nodes that drafting scores, of which the best ``total`` are kept."""
        return self.k + self.depth * self.k * self.k

    @property
    def nodes(self) -> int:
        """N, nodes with the root."""
        return self.total + 1

    @property
    def branches_alike(self) -> bool:
        """Whether every tree of this shape has its nodes in the same places, whatever is drafted.

        Without expansions the nodes are scored in falling order, so the first ones are kept; with one, the
        second level hangs on the first in order, and all have fixed places if all are kept.
        """
        return self.depth == 0 or (self.depth == 1 and self.total == self._scored)

    @property
    def longest_path(self) -> int:
        """Most nodes on one path, the root included."""
        return self.depth + 2

    @property
    def levels(self) -> int:
        """Most drafted nodes on one path."""
        return self.depth + 1

    @property
    def name(self) -> str:
        """The name of this tree in bundles and on the command line, such as ``k10-d4-n58``."""
        return f"k{self.k}-d{self.depth}-n{self.total}" + ("-coupled" if self.coupled else "")
