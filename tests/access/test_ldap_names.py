"""Distinguished names: values stay within their part, whatever they are; DNs compare as directories compare them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.ldap_names import escape_dn, fill, folded, read_dn

# what a name may be made of to become syntax
NASTY = st.text(st.sampled_from(list(',+"\\<>;=# ${}usernam*()\0\r\nx') + ["é", "漢"]), max_size=20)


@given(st.one_of(st.text(max_size=30), NASTY))
def test_a_value_stays_within_its_part(name: str) -> None:
    """Whatever a client calls itself, the DN that a bind gets has the parts of the pattern, and the name as its value (RFC 4514)."""
    text = name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    made = read_dn(f"uid={escape_dn(text)},ou=people,dc=example")
    assert made == ((("uid", text),), (("ou", "people"),), (("dc", "example"),))
    assert all(one.isascii() and one.isprintable() for one in escape_dn(name))


@given(st.one_of(st.text(max_size=30), NASTY))
def test_a_filled_pattern_keeps_its_parts(name: str) -> None:
    pattern = read_dn("cn=${vhost}-users+o=x,ou=${name},dc=example")
    made = fill(pattern, {"vhost": name, "name": name})
    assert [len(part) for part in made] == [2, 1, 1] and made[2] == (("dc", "example"),)
    assert [kind for part in made for kind, _ in part] == ["cn", "o", "ou", "dc"]


def test_names_that_are_the_same() -> None:
    same = [
        "CN=Admins,OU=Groups,DC=Example",
        "cn = admins , ou=groups,dc=example",
        r"cn=\41dmins,ou=groups,dc=example",
        "cn=ADMINS,ou=groups;dc=example",
    ]
    assert len({folded(read_dn(one)) for one in same}) == 1
    assert folded(read_dn("a=1+b=2,c=3")) == folded(read_dn("b=2+a=1,c=3"))
    others = [
        "cn=admins,ou=groups",
        r"cn=admins\,ou=groups,dc=example",
        "cn=admins+ou=groups,dc=example",
        "cn=adm ins,ou=groups,dc=example",
    ]
    assert len({folded(read_dn(one)) for one in [*same, *others]}) == 1 + len(others)


def test_escapes() -> None:
    assert read_dn(r"cn=a\, b\+\"c\20,o=\e6\bc\a2") == ((("cn", 'a, b+"c '),), (("o", "漢"),))
    assert read_dn("cn=  a  ,o=") == ((("cn", "a"),), (("o", ""),))


@pytest.mark.parametrize("text", ["", "x", "=a", "cn=a,", "cn=a,b", 'cn="a"', "cn=a\\", "cn=<", "c n=a", "cn=a\0"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError):
        read_dn(text)
