"""Principals of certificates: subjects in Java's form, and the rules that map them to names."""

from __future__ import annotations

import contextlib

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from pybroker.config.ssl_settings import check_rules
from pybroker.security.ssl_principal_mapper import distinguished_name, parse_rules, principal_name
from tests.rows import with_each

JAVA = [
    (("3033310b3009060355040613024e4c31133011060355040a0c0a41636d652c20496e632e310f300d06035504030c0663"
     "6c69656e74"),
     'CN=client,O=Acme\\, Inc.,C=NL'),
    (("3081d2310c300a06035504030c03613d62310c300a06035504030c03612362310c300a06035504030c03236162310e30"
     "0c06035504030c05206c656164310f300d06035504030c06747261696c203114301206035504030c0b202074776f2020"
     "696e2020310c300a06035504030c03782279310c300a06035504030c03785c793112301006035504030c09783c793e7a"
     "3b772b763112301006035504030c09c3a9e282acf09f9880310c300a06035504030c036100623111300f06035504030c"
     "087461620968657265310a300806035504030c012d"),
     ('CN=-,CN=tab\there,CN=a\\00b,CN=é€😀,CN=x\\<y\\>z\\;w\\+v,CN=x\\\\y,CN=x\\"y,CN=\\'
     ' \\ two  in\\ \\ ,CN=trail\\ ,CN=\\ lead,CN=\\#ab,CN=a\\#b,CN=a\\=b')),
    (("3081a1311e300a060355040b0c034465763010060a0992268993f22c6401010c0237373114301206092a864886f70d01"
     "090116056140622e63310a300806035504070c014c310a300806035504080c0153310b300906035504090c0273743112"
     "3010060a0992268993f22c64011916026463310b300906035504051302317a310b3009060355040c0c024472310a3008"
     "060355042a0c0147310a300806035504040c0153"),
     ('2.5.4.4=#0c0153,2.5.4.42=#0c0147,2.5.4.12=#0c024472,2.5.4.5=#1302317a,'
     'DC=dc,STREET=st,ST=S,L=L,1.2.840.113549.1.9.1=#16056140622e63,OU=Dev+U'
     'ID=77')),
    (("30653112301006092b06010401868d1f010c036f776e310f300d06035504031e060062006d0070310c300a0603550403"
     "14037436313115301306035504031c0c000000750000006e00000069310c300a06035504031603696135310b30090603"
     "55040313027072"),
     ('CN=pr,CN=ia5,CN=#1c0c000000750000006e00000069,CN=t61,CN=\\00b\\00m\\00p,1'
     '.3.6.1.4.1.99999.1=#0c036f776e')),
    ("3000",
     ''),
]  # fmt: skip
"""Names (DER) and the output of Java 17's X500Principal.getName(RFC2253) for them: escapes, blanks, several values of
one part, types that Java has no keyword for, and each kind of string."""


@pytest.mark.parametrize(("der", "text"), JAVA, ids=range(len(JAVA)))
def test_subjects_are_written_as_java_writes_them(der: str, text: str) -> None:
    assert distinguished_name(bytes.fromhex(der)) == text


@given(st.binary(max_size=60))
def test_what_is_no_name_is_refused(data: bytes) -> None:
    """An invalid subject is refused for any bytes, also if it begins with a valid name."""
    for der in (data, b"\x30" + bytes([len(data)]) + data, b"\x30\x84\xff\xff\xff\xff" + data):
        with contextlib.suppress(ValueError):
            assert isinstance(distinguished_name(der), str)


@given(st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()))
def test_a_value_cannot_pass_for_another_part(value: str) -> None:
    """A value cannot pass for another part: CN=a,OU=x within one value is one part."""
    made = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, value)]).public_bytes()
    text = distinguished_name(made)
    bare = text.removeprefix("CN=").replace("\\\\", "")
    for mark in ',+"<>;':
        assert bare.replace("\\" + mark, "").count(mark) == 0


@with_each(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=ServiceUsers,O=x", "kafka"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=Others,O=x", "CN=kafka,OU=Others,O=x"),
        ("RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/L", "cn=Adm,ou=Users,dc=a,dc=b", "adm@users"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "CN=first.last,O=x", "FIRST.LAST"),
        (r"RULE:^CN=a\/b$/x\/y/", "CN=a/b", "x/y"),
        ("RULE:CN=(a)|(b)/$1-$2/", "CN=a", "a-"),
        (" RULE:x/y/ , RULE:CN=.{1,3}/z/L", "CN=abc", "z"),
        (r"RULE:CN=(.*)/$0 $01 $12 \$1 \\/", "CN=a", r"CN=a a a2 $1 \."[:-1]),
        ("RULE:CN=(.)(.*)/$21-$2/", "CN=ab", "b1-b"),
        (r"RULE:CN=(\w*).*/<$1>/", "CN=\u00e9", "<>"),
        ("RULE:.*/x/", "CN=a", "xx"),
    ],
)
def test_the_first_rule_that_matches_all_of_it_makes_the_name(rules: str, subject: str, name: str) -> None:
    """The first rule that matches the whole subject makes the name as Kafka 3.9.1 does. The last row is odd: .* also
    matches at the end, and is replaced twice."""
    check_rules(rules)
    assert principal_name(parse_rules(rules), subject) == name


def test_no_rule_matches() -> None:
    for rules in ("RULE:^CN=b/x/", "RULE:CN=/x/"):
        with pytest.raises(ValueError, match=r"no rule of ssl\.principal\.mapping\.rules matches"):
            principal_name(parse_rules(rules), "CN=a")


@with_each("rules", ["RULE:x", "RULE:x/y", "RULE:x/y/Z", "RULE:x/y/L/", "default", "DEFAULT RULE:x/y/"])
def test_what_is_no_rule(rules: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rules(rules)
    with pytest.raises(ValueError, match=r"."):
        check_rules(rules)


@pytest.mark.parametrize("pattern", ["(", r"\p{Lu}", "[a&&b]"])
def test_a_pattern_that_python_would_read_in_another_way_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        parse_rules(f"RULE:{pattern}/x/")


@pytest.mark.parametrize("rule", ["CN=.*/$1/", "CN=(.*)/$1 $2/", "CN=.*/a$/", "CN=(.*)/$x/"])
def test_a_replacement_by_a_group_that_is_none_is_refused(rule: str) -> None:
    """A replacement with a group that does not exist is refused: Kafka would reject every client that matches; read as
    text, all of them would be one user."""
    with pytest.raises(ValueError, match="in the replacement"):
        parse_rules(f"RULE:{rule}")
