"""The table of fields has every field of the published types, and refers only to releases and gates that it defines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dra_devkit.schemas import shapes
from dra_devkit.schemas.shapes import LazyShape, ListShape, MapShape, Struct
from dra_kubeletplugin import Gate
from dra_kubeletplugin.resourceapi.conversion import GROUP
from dra_kubeletplugin.resourceapi.fields import FieldRow, fields_of, rows, table
from dra_kubeletplugin.resourceapi.gated_fields import slice_gates

KINDS = [kind for kind in table().kinds if kind not in {"Pod", "PodGroup"}]
OF_OTHER_GROUPS = ("apis.", "core.")  # types such as ObjectMeta and NodeSelector


def published(kind: str, version: str) -> set[str]:
    """Returns the paths of all fields that the published type of a kind has."""
    root = shapes.kind_shape(GROUP, version, kind)
    assert root is not None, (
        f"{version}/{kind} is in `kinds` of fields.toml, and schemas/types.json of the devkit lacks it"
    )
    return set(paths(root, ""))


def paths(struct: Struct, prefix: str) -> Iterator[str]:
    for name, field in struct.fields.items():
        if not prefix and name in {"apiVersion", "kind", "metadata"}:
            continue
        yield prefix + name
        shape, step = field.shape, ""
        while isinstance(shape, (ListShape, MapShape)):
            inner: LazyShape = shape.item if isinstance(shape, ListShape) else shape.value
            step += "[]" if isinstance(shape, ListShape) else ".*"
            shape = inner.shape
        if isinstance(shape, Struct) and not shape.name.startswith(OF_OTHER_GROUPS):
            yield from paths(shape, f"{prefix}{name}{step}.")


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_each_field_of_the_published_type(kind: str) -> None:
    known = {field.path for field in fields_of(kind)}
    for version in {version for served in table().kinds[kind].values() for version in served} - {"v1beta1", "v1alpha3"}:
        found = published(kind, version)
        assert found - known - {"spec.metadata"} == set(), "fields without a row: add them to resourceapi/fields.toml"
        assert known - found == set(), "rows of fields that no published type has: correct their path or type"


ROWS = [(type_name, name, row) for type_name in table().types for name, row in rows(type_name).items()]


@pytest.mark.parametrize(("type_name", "row"), [(t, r) for t, _, r in ROWS], ids=[f"{t}.{n}" for t, n, _ in ROWS])
def test_a_row_names_known_releases_and_gates_and_is_used(type_name: str, row: FieldRow) -> None:
    assert {row.since, row.until, row.off_until} <= {"", "later", *table().releases}
    assert row.gate in {"", *table().gates}
    assert type_name in table().kinds or any(row.item_type == type_name for _, _, row in ROWS), "no field has this type"


def test_a_gate_comes_after_the_gates_that_it_needs() -> None:
    order = list(table().gates)
    for name, gate in table().gates.items():
        assert all(order.index(needed) < order.index(name) for needed in gate.needs), name
        assert set(gate.stages) <= set(table().releases), name
        assert set(gate.stages.values()) <= {"alpha", "beta", "beta, off", "stable, not locked", "stable"}, name


def test_authors_have_a_name_for_each_gate_of_slices() -> None:
    assert set(Gate) == set(slice_gates())
