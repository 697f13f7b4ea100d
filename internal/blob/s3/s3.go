// Package s3 implements the blob store in a bucket of an S3-compatible service.
//
// The object with the key base-N of an upload has the name PREFIX/base-N in the bucket. The
// state of an unfinished upload names up to two things: a multipart upload, with the bytes
// that filled whole parts, and the tail, an object with the few bytes after these. The tail is
// necessary because S3 refuses parts below 5 MiB, except the last part; the next request to
// the upload reads the tail back and adds its own bytes to it. An upload below the part size
// needs only one PutObject: its tail becomes the blob's object.
//
// S3 has no locks with which a request (attempt) could keep out an older request that has lost
// the upload to it (a fenced attempt). The older request's parts and objects do no harm, since
// they have numbers of their own. But its CompleteMultipartUpload could end a multipart upload
// to which the newer request still adds parts. Therefore each request takes a number before it
// completes or changes a multipart upload. If the next request learns from its claim that
// numbers were taken and not saved, it first completes the multipart upload itself, or finds
// that the older request has done so; after that no request can change it. The next request
// continues in a new multipart upload, into which the service copies the acknowledged bytes.
// See writer.takeOver.
//
// The bucket should not be versioned: a versioned bucket keeps the bytes of deleted
// objects.
//
// A request to the service has a limit for its progress, not for its time, which depends on its
// size (patience.go). A request that was given up isn't repeated: a client waits for it.
package s3

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"github.com/purser-registry/purser/internal/blob"
)

const (
	minPartSize = 5 << 20 // S3's minimum for every part but the last
	maxParts    = 10000   // S3's maximum part number

	// The size of parts doubles after every growEvery part numbers. With the default part
	// size, an upload in one request can have 1.5 TiB. Its two buffers use 16 MiB at first,
	// and later at most 0.3 % of the bytes sent so far.
	growEvery = 1400

	octetStream = "application/octet-stream"
)

// Options configure access to the bucket.
type Options struct {
	Endpoint  string // http:// or https:// URL, or a host with https; default https://s3.amazonaws.com
	Bucket    string // must exist
	Region    string // default: ask the service
	Prefix    string // of every key, "/" is appended; default none
	PathStyle bool   // put the bucket in the path, not in the host name; always so unless the host is known to support host names

	// AccessKey and SecretKey are the credentials. If they are empty, the store uses the AWS_…
	// environment variables, else ~/.aws/credentials, else the role of the container or
	// machine.
	AccessKey, SecretKey string

	// PartSize is the size of the first parts of a multipart upload, and of their
	// buffers, in bytes. Each upload uses at most two buffers. Default 8 MiB, at least
	// 5 MiB.
	PartSize int64

	// Timeout is how long the service may go without progress: take no bytes of a request, not
	// begin its answer, or send no bytes of it. It has ten times as long to copy a part and
	// to complete an upload. Default 30 seconds.
	Timeout time.Duration

	// Roots are the authorities that may have signed the service's certificate. Default: the
	// system's.
	Roots *x509.CertPool

	// Encryption says how the service encrypts the objects that are written. Default: as the
	// bucket has it.
	Encryption Encryption
	// KMSKey is the key at the service's key management with EncryptKMS. Default: the service's own.
	KMSKey string

	// Transport replaces the default HTTP transport. Roots has no effect then.
	Transport http.RoundTripper
}

// Encryption says with whose keys the service encrypts objects.
type Encryption string

// The kinds of encryption by the service.
const (
	EncryptNone Encryption = ""    // nothing is asked for: the bucket's default applies
	EncryptS3   Encryption = "s3"  // SSE-S3: keys of the service
	EncryptKMS  Encryption = "kms" // SSE-KMS: keys of a key management
)

// serverSide returns the encryption that is asked for with each object that is written; nil: none.
func (o Options) serverSide() (encrypt.ServerSide, error) {
	switch o.Encryption {
	case EncryptNone:
		return nil, nil
	case EncryptS3:
		return encrypt.NewSSE(), nil
	case EncryptKMS:
		return encrypt.NewSSEKMS(o.KMSKey, nil)
	}
	return nil, fmt.Errorf("S3 store: there is no encryption %q", o.Encryption)
}

// Store is a blob.Store in a bucket.
type Store struct {
	core      *minio.Core
	creds     *credentials.Credentials
	transport http.RoundTripper
	endpoint  string
	bucket    string
	prefix    string
	partSize  int64
	sse       encrypt.ServerSide // nil: none
}

var _ blob.Store = (*Store)(nil)

// New returns the store for a bucket. It sends no request; call Check to test the connection.
func New(o Options) (*Store, error) {
	if o.Endpoint == "" {
		o.Endpoint = "https://s3.amazonaws.com"
	}
	host, secure, err := parseEndpoint(o.Endpoint)
	if err != nil {
		return nil, err
	}
	if o.Bucket == "" {
		return nil, errors.New("S3 store: no bucket is given")
	}
	if (o.AccessKey == "") != (o.SecretKey == "") {
		return nil, errors.New("S3 store: access key and secret key are given only together")
	}
	o.PartSize = cmp.Or(o.PartSize, 8<<20)
	if o.PartSize < minPartSize {
		return nil, fmt.Errorf("S3 store: part size %d is below S3's minimum of %d", o.PartSize, minPartSize)
	}
	if o.Transport == nil {
		if o.Transport, err = newTransport(secure, o.Roots); err != nil {
			return nil, fmt.Errorf("S3 store: %w", err)
		}
	}
	o.Transport = &impatient{o.Transport, cmp.Or(o.Timeout, defaultTimeout)}
	sse, err := o.serverSide()
	if err != nil {
		return nil, err
	}
	creds := credentialsOf(o)
	opts := &minio.Options{
		Creds: creds, Secure: secure, Region: o.Region, Transport: o.Transport,
		MaxRetries: 5,
	}
	if o.PathStyle {
		opts.BucketLookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(host, opts)
	if err != nil {
		return nil, fmt.Errorf("S3 store at %s: %w", o.Endpoint, err)
	}
	prefix := strings.Trim(o.Prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &Store{
		core: core, creds: creds, transport: o.Transport, endpoint: o.Endpoint,
		bucket: o.Bucket, prefix: prefix, partSize: o.PartSize, sse: sse,
	}, nil
}

func parseEndpoint(endpoint string) (host string, secure bool, err error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", false, fmt.Errorf("S3 endpoint: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", false, fmt.Errorf("S3 endpoint %s must be http://HOST[:PORT] or https://HOST[:PORT]", u.Redacted())
	}
	return u.Host, u.Scheme == "https", nil
}

func newTransport(secure bool, roots *x509.CertPool) (http.RoundTripper, error) {
	t, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	if roots != nil && t.TLSClientConfig != nil {
		t.TLSClientConfig.RootCAs = roots
	}
	t.MaxIdleConnsPerHost = 128
	t.ResponseHeaderTimeout = 0 // see impatient
	return t, nil
}

func credentialsOf(o Options) *credentials.Credentials {
	if o.AccessKey != "" {
		return credentials.NewStaticV4(o.AccessKey, o.SecretKey, "")
	}
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		// The timeout is short because outside of a cloud there is no metadata service, and
		// nothing answers at its address.
		&credentials.IAM{Client: &http.Client{Timeout: 10 * time.Second}},
	})
}

// Close closes idle connections. The store can still be used afterwards.
func (s *Store) Close() error {
	if t, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// putOptions returns the options of requests that write an object, or begin to.
func (s *Store) putOptions(contentType string) minio.PutObjectOptions {
	return minio.PutObjectOptions{ContentType: contentType, ServerSideEncryption: s.sse}
}

// name returns the object's name in the bucket.
func (s *Store) name(key string) string { return s.prefix + key }

// Presign implements blob.Store.
func (s *Store) Presign(ctx context.Context, key string, o blob.PresignOptions) (string, error) {
	o.TTL = cmp.Or(o.TTL, 15*time.Minute)
	o.ContentType = cmp.Or(o.ContentType, octetStream)
	query := url.Values{"response-content-type": {o.ContentType}}
	u, err := s.core.PresignedGetObject(ctx, s.bucket, s.name(key), o.TTL, query)
	if err != nil {
		return "", fmt.Errorf("presigning object %s: %w", key, err)
	}
	return u.String(), nil
}

// Check implements blob.Store. It sends a HEAD request for the bucket.
func (s *Store) Check(ctx context.Context) error {
	exists, err := s.core.BucketExists(patiently(ctx), s.bucket)
	if err == nil && exists {
		return nil
	}
	if err == nil {
		// The answer to a HEAD has no code, and some servers answer 404 to an unknown key too.
		err = s.list(ctx)
	}
	if err == nil || code(err) == minio.NoSuchBucket {
		return fmt.Errorf("%w: S3 bucket %q at %s: create it or correct its name", errNoBucket, s.bucket, s.endpoint)
	}
	return fmt.Errorf("S3 bucket %q at %s: %w%s", s.bucket, s.endpoint, err, s.wayOut(ctx, err))
}

// list lists at most one object.
func (s *Store) list(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range s.core.Client.ListObjects(patiently(ctx), s.bucket, minio.ListObjectsOptions{MaxKeys: 1}) {
		return o.Err
	}
	return nil
}

var errNoBucket = errors.New("the bucket does not exist")

// wayOut suggests what to check after err.
func (s *Store) wayOut(ctx context.Context, err error) string {
	resp := minio.ToErrorResponse(err)
	switch {
	case ctx.Err() != nil || resp.Code == "":
		return " (is the endpoint right, and can it be reached from here?)"
	case resp.StatusCode == http.StatusForbidden, slices.Contains(refusals, resp.Code):
		if v, err := s.creds.GetWithContext(nil); err == nil && v.AccessKeyID == "" {
			return " (no credentials: set an access key and a secret key, or give AWS_ACCESS_KEY_ID and" +
				" AWS_SECRET_ACCESS_KEY, ~/.aws/credentials or a role)"
		}
		return " (the credentials are wrong, or may not use the bucket: they need s3:ListBucket," +
			" s3:ListBucketMultipartUploads, s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload)"
	case resp.StatusCode == http.StatusMovedPermanently || resp.StatusCode == http.StatusBadRequest:
		return " (is the region right?)"
	}
	return ""
}

// refusals are S3's error codes for missing permissions and wrong credentials. Some servers
// (versitygw) send them with other statuses than 403.
var refusals = []string{"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "XAdminUserNotFound"}

// TroubleOf classifies an error of this package's Store, S3's errors included.
func TroubleOf(err error) blob.Trouble {
	var resp minio.ErrorResponse
	if errors.Is(err, errNoBucket) {
		return blob.TroubleMissing
	}
	if !errors.As(err, &resp) {
		return blob.TroubleOf(err)
	}
	switch {
	case resp.Code == minio.NoSuchBucket:
		return blob.TroubleMissing
	case resp.Code == "XMinioStorageFull", resp.Code == "QuotaExceeded", resp.StatusCode == http.StatusInsufficientStorage:
		return blob.TroubleFull
	case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusUnauthorized, slices.Contains(refusals, resp.Code):
		return blob.TroubleForbidden
	}
	return blob.TroubleAway
}

// Temporary says whether trying again may help after err: S3 doesn't answer, or says that it can't
// work now. A wrong key, bucket or region isn't temporary.
func Temporary(err error) bool {
	var resp minio.ErrorResponse
	if !errors.As(err, &resp) {
		return err != nil && !errors.Is(err, errNoBucket)
	}
	return resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout
}

// code returns the S3 error code of err, "" if err isn't an error response of S3.
func code(err error) string {
	var resp minio.ErrorResponse
	if errors.As(err, &resp) {
		return resp.Code
	}
	return ""
}
