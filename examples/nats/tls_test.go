package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// certificate writes NAME.crt and NAME.key, for a server and a client on loopback. It is
// signed by its parent; without one it is an authority.
func certificate(t *testing.T, dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
		IsCA: parent == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	check(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	result, err := x509.ParseCertificate(der)
	check(t, err)
	return result, key
}

func TestConnectsWithCertificateAndNkey(t *testing.T) {
	dir := folder(t)
	authority, key := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "server", authority, key)
	certificate(t, dir, "client", authority, key)
	user, err := nkeys.CreateUser()
	check(t, err)
	seed, err := user.Seed()
	check(t, err)
	public, err := user.PublicKey()
	check(t, err)
	file := func(name string) string { return filepath.Join(dir, name) }
	check(t, os.WriteFile(file("user.nk"), seed, 0o600))
	option, err := nats.NkeyOptionFromSeed(file("user.nk"))
	check(t, err)

	p := startPostgres(t)
	n := startNATS(t, fmt.Sprintf(`tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }
		authorization { users: [ { nkey: %s } ] }`, file("server.crt"), file("server.key"), file("ca.crt"), public),
		option, nats.RootCAs(file("ca.crt")), nats.ClientCert(file("client.crt"), file("client.key")))
	startBridge(t, p.url(), n, "-tlsca", file("ca.crt"), "-tlscert", file("client.crt"), "-tlskey", file("client.key"), "-nkey", file("user.nk"))
	// A slot that is being created is there too, and does not have what is committed meanwhile.
	waitUntil(t, "the slot is there", func() bool {
		return p.value(t, "SELECT count(confirmed_flush_lsn)::text FROM pg_replication_slots") == "1"
	})
	p.exec(t, "NOTIFY jobs, 'secret'")
	waitUntil(t, "the message is in the stream", func() bool { return n.last(streamName) == 1 })
}
