"""Binding conditions (KEP-5007) in the controller: the claims that wait for their devices, and the records of bound claims."""
