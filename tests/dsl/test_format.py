"""How texts are laid out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.dsl.format import format_text
from heliograph.errors import LanguageError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

UGLY = """

# at the top
program   p   # the name
input x:secret tensor [2,3] in[-1,1]


input s: plain tensor[2]
param w = [[1,2,3,4],  # row one
 # on its own
 [0.5,1,-1,2,]
 # at the end
]
param long = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,-36]
fn layer(x:tensor[n],w: tensor[m,n])->tensor[m]{

  z = linear(x,weight = w)
  a = relu(z,degree=5)*-2  # trailing


  return a+relu(z*2)

}
h = layer(x, w) with range=[-8, 8],method="minimax"
for i in 0 .. 2*3 by 1 { h = relu( h) }   # one line
y = h * s-x[ 1:3,::2,: ] ** 2 // (3- -1)
z = concat([layer(h, weight_of_the_layer), layer(x[0:2], 3 + -4), h + s, x[0:1], x[:2]], h, axis = 0)
output y, "z z"=z"""


def test_golden(golden: Callable[[str, str], None]) -> None:
    formatted = format_text(UGLY)
    assert format_text(formatted) == formatted
    golden("formatted.hg", formatted)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.hg")), ids=lambda path: path.name)
def test_examples_are_formatted(path: Path) -> None:
    assert format_text(path.read_text()) == path.read_text()


def test_comparisons() -> None:
    text = (
        "program p\ninput x: secret tensor[3]\ny = where(x>-1, x<=2, -(x+1>=[1,2,3])) with gap=0.5\nz=x<-y\noutput z\n"
    )
    formatted = format_text(text)
    assert "y = where(x > -1, x <= 2, -(x + 1 >= [1, 2, 3])) with gap = 0.5\nz = x < -y\n" in formatted
    assert format_text(formatted) == formatted


def test_wrong_texts_stay_as_they_are() -> None:
    with pytest.raises(LanguageError, match="is not expected here"):
        format_text("program p\nx = = 3\n")


def test_empty() -> None:
    assert format_text("") == ""
    assert format_text("\n\n# only\n\n\n# comments") == "# only\n\n# comments\n"
