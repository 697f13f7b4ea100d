package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code is an error code of the OCI Distribution Specification ("Error Codes").
type Code string

// These are the specification's codes, and two more that other registries use too.
const (
	BlobUnknown         Code = "BLOB_UNKNOWN"
	BlobUploadInvalid   Code = "BLOB_UPLOAD_INVALID"
	BlobUploadUnknown   Code = "BLOB_UPLOAD_UNKNOWN"
	DigestInvalid       Code = "DIGEST_INVALID"
	ManifestBlobUnknown Code = "MANIFEST_BLOB_UNKNOWN"
	ManifestInvalid     Code = "MANIFEST_INVALID"
	ManifestUnknown     Code = "MANIFEST_UNKNOWN"
	NameInvalid         Code = "NAME_INVALID"
	NameUnknown         Code = "NAME_UNKNOWN"
	SizeInvalid         Code = "SIZE_INVALID"
	Unauthorized        Code = "UNAUTHORIZED"
	Denied              Code = "DENIED"
	Unsupported         Code = "UNSUPPORTED"
	TooManyRequests     Code = "TOOMANYREQUESTS"

	Unknown     Code = "UNKNOWN"
	Unavailable Code = "UNAVAILABLE"
)

// codeFacts has the default HTTP status and message for errors with a code.
type codeFacts struct {
	status  int
	message string
}

// The specification fixes the statuses of most codes. For MANIFEST_BLOB_UNKNOWN it requires
// any 4XX. Purser answers 400, as the CNCF's registry "distribution" does: the request is wrong,
// while a 404 for this request would say that the repository doesn't exist.
var codes = map[Code]codeFacts{
	BlobUnknown:         {http.StatusNotFound, "blob unknown to registry"},
	BlobUploadInvalid:   {http.StatusBadRequest, "blob upload invalid"},
	BlobUploadUnknown:   {http.StatusNotFound, "blob upload unknown to registry"},
	DigestInvalid:       {http.StatusBadRequest, "provided digest did not match uploaded content"},
	ManifestBlobUnknown: {http.StatusBadRequest, "manifest references a manifest or blob unknown to registry"},
	ManifestInvalid:     {http.StatusBadRequest, "manifest invalid"},
	ManifestUnknown:     {http.StatusNotFound, "manifest unknown to registry"},
	NameInvalid:         {http.StatusBadRequest, "invalid repository name"},
	NameUnknown:         {http.StatusNotFound, "repository name not known to registry"},
	SizeInvalid:         {http.StatusBadRequest, "provided length did not match content length"},
	Unauthorized:        {http.StatusUnauthorized, "authentication required"},
	Denied:              {http.StatusForbidden, "requested access to the resource is denied"},
	Unsupported:         {http.StatusMethodNotAllowed, "the operation is unsupported"},
	TooManyRequests:     {http.StatusTooManyRequests, "too many requests"},
	Unknown:             {http.StatusInternalServerError, "unknown error"},
	Unavailable:         {http.StatusServiceUnavailable, "the service is unavailable"},
}

// HTTPStatus returns the default HTTP status for errors with this code, 500 for an unknown
// code.
func (c Code) HTTPStatus() int {
	if facts, ok := codes[c]; ok {
		return facts.status
	}
	return http.StatusInternalServerError
}

// Message returns the description of the code in the specification.
func (c Code) Message() string {
	if facts, ok := codes[c]; ok {
		return facts.message
	}
	return codes[Unknown].message
}

// Error is an error for a client. The client gets everything in it except the wrapped error.
// An Error never changes, so goroutines can share it: the methods With… return a changed copy.
type Error struct {
	Code    Code
	Message string // for the client; empty: the code's message
	Detail  any    // encoded as JSON; nil: left out
	Status  int    // HTTP status; 0: the code's status
	// RetryAfter is when the client may try again, from now. 0: nothing is known of that.
	RetryAfter time.Duration

	err error
}

// NewError returns an error with the code's message.
func NewError(code Code) *Error {
	return &Error{Code: code}
}

// Errorf returns an error with a message for the client, formatted by [fmt.Errorf].
// [errors.Is] and [errors.As] find errors that are wrapped with %w, but the text of such an
// error becomes part of the message. Use [Error.WithCause] for errors that the client mustn't
// see.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), err: err}
}

// Invalid returns the error UNSUPPORTED with status 400: the request itself asks for what can't be.
func Invalid(format string, args ...any) *Error {
	return Errorf(Unsupported, format, args...).WithStatus(400)
}

// NotFound returns the error NAME_UNKNOWN with status 404, for what isn't a repository or a namespace.
func NotFound(format string, args ...any) *Error {
	return Errorf(NameUnknown, format, args...).WithStatus(404)
}

// WithDetail returns a copy with a detail, which may be any value that encodes to JSON.
func (e *Error) WithDetail(detail any) *Error {
	c := *e
	c.Detail = detail
	return &c
}

// WithStatus returns a copy with the HTTP status.
func (e *Error) WithStatus(status int) *Error {
	c := *e
	c.Status = status
	return &c
}

// WithRetryAfter returns a copy that tells the client when to try again.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// WithCause returns a copy that wraps err. Only Error(), which is for the log, contains the
// text of err; the client never gets it.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.err = err
	return &c
}

// Error returns the code, the message, and the text of the wrapped error unless that is the
// message. It is for the log.
func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.message()
	if e.err != nil && e.err.Error() != e.Message {
		text += ": " + e.err.Error()
	}
	return text
}

// Unwrap returns the cause, nil when there is none.
func (e *Error) Unwrap() error { return e.err }

// HTTPStatus returns the error's own status if it is set, else the default status of its code.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Code.HTTPStatus()
}

func (e *Error) message() string {
	if e.Message != "" {
		return e.Message
	}
	return e.Code.Message()
}

// CodeOf returns the code of the first [Error] in err's chain, [Unknown] if there is none, and
// "" if err is nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unknown
}

// IsClientError says whether err is an answer for the client, such as MANIFEST_UNKNOWN, and not an
// internal failure: whether an [Error] is in its chain.
func IsClientError(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

// ErrorBody is the JSON body of an error answer (OCI Distribution Specification, "Error
// Codes").
type ErrorBody struct {
	Errors []ErrorEntry `json:"errors"`
}

// ErrorEntry is one error in an [ErrorBody].
type ErrorEntry struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Detail  any    `json:"detail,omitempty"`
}

// MarshalErrors returns the JSON body of an error answer with these errors. It leaves out all
// details if one of them can't be encoded as JSON.
func MarshalErrors(errs ...*Error) []byte {
	body := ErrorBody{Errors: make([]ErrorEntry, 0, len(errs))}
	for _, e := range errs {
		body.Errors = append(body.Errors, ErrorEntry{Code: e.Code, Message: e.message(), Detail: e.Detail})
	}
	b, err := json.Marshal(body)
	if err == nil {
		return b
	}
	for i := range body.Errors {
		body.Errors[i].Detail = nil
	}
	if b, err = json.Marshal(body); err != nil {
		// Without details the body has only strings, which can always be encoded.
		panic(fmt.Sprintf("oci: marshalling errors: %v", err))
	}
	return b
}
