"""The compiler: the pipeline of passes, the choice of parameters, artifacts and reports."""
