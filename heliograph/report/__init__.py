"""Reports about a program for people: texts, HTML, drawings, plots, differences, depth, explanations."""
