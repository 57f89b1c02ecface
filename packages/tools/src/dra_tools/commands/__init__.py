"""The commands of operators: `dra explain`, `simulate`, `top`, `doctor` and `gather`."""
