"""Selects cells of tables by the words of a command line: recipes, methods, or names of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egm.reproduce.definitions import Cell
from egm.util.expressions import nearest


@dataclass(frozen=True)
class Selection:
    """A choice of cells: by recipe and method (an empty set stands for all), and by name."""

    recipes: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, words: Sequence[str], cells: Sequence[Cell]) -> Selection:
        """Return the selection of these cells by words; raises for an unknown word and suggests the nearest."""
        groups = (
            {cell.stem for cell in cells},
            {name for cell in cells for name in (cell.method, cell.label)},
            {name for cell in cells for name in (cell.name, f"{cell.stem}-{cell.method}")},
        )
        chosen: tuple[set[str], ...] = (set(), set(), set())
        for word in words:
            known = nearest(word, sorted(set().union(*groups)), kind="a row (its recipe, its method or its name)")
            next(part for part, group in zip(chosen, groups, strict=True) if known in group).add(known)
        return cls(*map(frozenset, chosen))

    def takes(self, cell: Cell) -> bool:
        """Return whether a cell is selected."""
        if self.names & {cell.name, f"{cell.stem}-{cell.method}"}:
            return True
        if self.names and not self.recipes and not self.methods:
            return False
        by = not self.methods or bool(self.methods & {cell.method, cell.label})
        return by and (not self.recipes or cell.stem in self.recipes)
