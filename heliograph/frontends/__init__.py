"""Front ends: from models in other frameworks to programs of the tensor stage."""
