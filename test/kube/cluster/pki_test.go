// SPDX-License-Identifier: Apache-2.0

package cluster

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
	"time"
)

// pki issues the cluster's certificates, in a directory.
type pki struct {
	dir    string
	server string // URL of the API server
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
}

func newPKI(dir string, v ipVersion) (*pki, error) {
	p := &pki{dir: dir, server: "https://" + net.JoinHostPort(v.api, "6443")}
	template := certificate("cluster")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	key, der, err := p.sign("ca", template)
	if err != nil {
		return nil, err
	}
	p.key = key
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	_, err = p.issue("sa", certificate("service-accounts")) // only its key is used
	return p, err
}

func certificate(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: groups}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

// issue writes NAME.crt and NAME.key, and returns the directory's path of the former.
func (p *pki) issue(name string, template *x509.Certificate) (string, error) {
	_, _, err := p.sign(name, template)
	return p.path(name + ".crt"), err
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// sign signs with the CA, or with the new key while there is none.
func (p *pki) sign(name string, template *x509.Certificate) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, nil, err
	}
	parent, signer := p.ca, p.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if err := p.write(name+".crt", "CERTIFICATE", der); err != nil {
		return nil, nil, err
	}
	return key, der, p.write(name+".key", "EC PRIVATE KEY", private)
}

func (p *pki) write(name, kind string, der []byte) error {
	return os.WriteFile(p.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig issues a client certificate and returns the path of a kubeconfig with it.
func (p *pki) kubeconfig(file, user string, groups ...string) (string, error) {
	if _, err := p.issue(file, certificate(user, groups...)); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%[1]s", certificate-authority: %[2]s/ca.crt}}]
users: [{name: u, user: {client-certificate: %[2]s/%[3]s.crt, client-key: %[2]s/%[3]s.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, p.server, p.dir, file)
	path := p.path(file + ".conf")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// serving issues the API server's certificate.
func (p *pki) serving(v ipVersion) error {
	c := certificate("kube-apiserver")
	c.DNSNames = []string{"kubernetes.default.svc"}
	for _, a := range []string{v.api, v.kubernetes} {
		c.IPAddresses = append(c.IPAddresses, net.ParseIP(a))
	}
	_, err := p.issue("apiserver", c)
	return err
}
