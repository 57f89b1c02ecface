"""The commands of driver authors: `dra dev`, `new`, `deploy`, `inspect`, `validate`, `schema` and `completion`."""
