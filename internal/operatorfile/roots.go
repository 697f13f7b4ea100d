package operatorfile

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
)

// ErrNoCertificate says that a file has no certificate in PEM format.
var ErrNoCertificate = errors.New("it has no certificate in PEM format (-----BEGIN CERTIFICATE-----)")

// Roots reads the PEM file at `path` with the certificates of authorities, by which servers are
// trusted instead of by those of the system. If `path` is empty it returns nil, which stands for those of
// the system in [crypto/tls.Config]. Each error is a *fs.PathError.
func Roots(ctx context.Context, path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	file, err := Read(ctx, path, MaxPEM)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(file.Text) {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrNoCertificate}
	}
	return pool, nil
}
