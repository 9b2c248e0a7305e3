"""A certificate authority of a test's own, which signs for servers at localhost and for their clients."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


class Authority:
    """Whose own certificate and all that it signs are valid until `until`."""

    def __init__(self, until: timedelta = timedelta(hours=1)) -> None:
        self._until = until
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self._signed("authority", self._key.public_key(), is_authority=True)

    def issue(self, name: str, *addresses: str) -> tuple[bytes, bytes]:
        """A certificate, for some IP addresses too, and its private key."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self._signed(name, key.public_key(), addresses), private

    def write(self, directory: Path, name: str) -> Path:
        """A directory with ca.pem, cert.pem and key.pem."""
        directory.mkdir()
        certificate, key = self.issue(name)
        for file, content in (("ca.pem", self.pem), ("cert.pem", certificate), ("key.pem", key)):
            (directory / file).write_bytes(content)
        return directory

    def _signed(
        self,
        name: str,
        public: ec.EllipticCurvePublicKey,
        addresses: Sequence[str] = (),
        *,
        is_authority: bool = False,
    ) -> bytes:
        names = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(one)) for one in addresses)]
        now, subject = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if is_authority else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + self._until)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
            .public_bytes(_PEM)
        )
