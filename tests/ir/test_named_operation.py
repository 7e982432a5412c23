from __future__ import annotations

from nnadapter.ir import SCHEMAS, NamedOperation
from tests.every import for_every

OWN = {name for name in vars(NamedOperation) if not name.startswith("_")}


@for_every(type_=SCHEMAS)
def test_no_name_of_the_schema_means_two_things(type_):
    """`inputs` of CONCAT is both the role and all inputs; `attributes` of CUSTOM is an entry of `attributes`."""
    schema = SCHEMAS[type_]
    roles, attributes = [role.name for role in schema.inputs], [attribute.name for attribute in schema.attributes]
    assert len({*roles, *attributes}) == len(roles) + len(attributes)
    assert OWN & {*roles, *attributes} <= {"inputs", "attributes"}
    assert "inputs" not in roles or roles == ["inputs"]
