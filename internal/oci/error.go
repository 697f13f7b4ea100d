package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Code is an error code of the OCI Distribution Specification ("Error Codes").
type Code string

// The specification's codes, then two that registries have in common beyond it.
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

// codeFacts is what a code implies where an error says nothing else.
type codeFacts struct {
	status  int
	message string
}

// The specification fixes most statuses and asks of MANIFEST_BLOB_UNKNOWN only
// that it be a 4XX. It is 400, as distribution answers: the request is at fault,
// whereas 404 on this route says that the repository isn't there.
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

// HTTPStatus returns the status that answers an error of this code where
// nothing more exact is known, 500 for a code that isn't one of this package.
func (c Code) HTTPStatus() int {
	if facts, ok := codes[c]; ok {
		return facts.status
	}
	return http.StatusInternalServerError
}

// Message returns the specification's description of the code.
func (c Code) Message() string {
	if facts, ok := codes[c]; ok {
		return facts.message
	}
	return codes[Unknown].message
}

// Error is a failure that a client is told of. Everything in it but the error
// that it wraps reaches the client. Errors are shared between goroutines once
// made: the With methods return a changed copy.
type Error struct {
	Code    Code
	Message string // shown to the client; empty: the code's own
	Detail  any    // marshalled as JSON; nil: left out
	Status  int    // HTTP status; 0: the code's own

	err error
}

// NewError returns an error with the code's own message.
func NewError(code Code) *Error {
	return &Error{Code: code}
}

// Errorf returns an error with a message for the client, formatted as by
// [fmt.Errorf]. What it wraps with %w is found by [errors.Is] and [errors.As];
// its text is part of the message, so wrap nothing that must stay internal (use
// [Error.WithCause] for that).
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), err: err}
}

// WithDetail returns a copy with the detail, any value that JSON can hold.
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

// WithCause returns a copy that wraps err. The client never sees err: it stands
// in Error(), which is for the log.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.err = err
	return &c
}

// Error returns code and message, and the cause when the message doesn't hold
// it. It is for the log.
func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.message()
	if e.err != nil && e.err.Error() != e.Message {
		text += ": " + e.err.Error()
	}
	return text
}

// Unwrap returns the cause, nil when there is none.
func (e *Error) Unwrap() error { return e.err }

// HTTPStatus returns the error's own status, else its code's.
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

// CodeOf returns the code of the first [Error] in err's chain, [Unknown]
// when there is none and "" for nil.
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

// ErrorBody is the JSON body of an error response (OCI Distribution
// Specification, "Error Codes").
type ErrorBody struct {
	Errors []ErrorEntry `json:"errors"`
}

// ErrorEntry is one error in an [ErrorBody].
type ErrorEntry struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Detail  any    `json:"detail,omitempty"`
}

// MarshalErrors returns the body that tells a client of errs. Details that JSON
// can't hold are left out rather than losing the answer.
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
		// Only strings are left, and every string has a JSON form.
		panic(fmt.Sprintf("oci: marshalling errors: %v", err))
	}
	return b
}
