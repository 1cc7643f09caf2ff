"""What people read of a program: texts, HTML, drawings, plots, differences, depth, explanations."""
