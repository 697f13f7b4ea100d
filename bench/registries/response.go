package registries

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// response has those parts of an answer that the workloads check. The next answer on the same
// connection overwrites digest and location.
type response struct {
	status   int
	length   int64  // announced by Content-Length; -1 when it wasn't
	body     int64  // bytes of body read
	digest   []byte // Docker-Content-Digest; empty when absent
	location []byte // Location; empty when absent
	chunked  bool
	closes   bool // the server ends the connection after this answer
}

var errHeader = errors.New("malformed HTTP answer")

// readHead reads the status line and the headers of an answer (RFC 9112 sections 4 and 5).
func (r *response) readHead(br *bufio.Reader) error {
	*r = response{length: -1, digest: r.digest[:0], location: r.location[:0]}
	line, err := readLine(br)
	if err != nil {
		return err
	}
	// The status line is like "HTTP/1.1 200 OK". The reason phrase and the space before it may
	// be missing.
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return fmt.Errorf("%w: status line %q", errHeader, line)
	}
	if r.status, err = strconv.Atoi(string(line[9:12])); err != nil || r.status < 100 {
		return fmt.Errorf("%w: status line %q", errHeader, line)
	}
	r.closes = line[7] == '0'
	for {
		if line, err = readLine(br); err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		if err := r.header(line); err != nil {
			return err
		}
	}
}

// header parses one header line. It compares the length of the header's name first, since most
// headers aren't needed.
func (r *response) header(line []byte) error {
	i := bytes.IndexByte(line, ':')
	if i <= 0 {
		return fmt.Errorf("%w: header %q", errHeader, line)
	}
	name, value := line[:i], bytes.Trim(line[i+1:], " \t")
	switch {
	case is(name, "Content-Length"):
		n, err := strconv.ParseUint(string(value), 10, 63)
		if err != nil || r.length >= 0 && r.length != int64(n) {
			return fmt.Errorf("%w: header %q", errHeader, line)
		}
		r.length = int64(n)
	case is(name, "Transfer-Encoding"):
		if !is(value, "chunked") {
			return fmt.Errorf("%w: transfer encoding %q", errHeader, value)
		}
		r.chunked = true
	case is(name, "Connection"):
		switch {
		case is(value, "close"):
			r.closes = true
		case is(value, "keep-alive"):
			r.closes = false
		}
	case is(name, "Docker-Content-Digest"):
		r.digest = append(r.digest[:0], value...)
	case is(name, "Location"):
		r.location = append(r.location[:0], value...)
	}
	return nil
}

func is(b []byte, name string) bool {
	return len(b) == len(name) && bytes.EqualFold(b, []byte(name))
}

// readBody reads the body to its end by the rules of RFC 9112 section 6.3.
func (r *response) readBody(br *bufio.Reader, scratch []byte, head bool, sink io.Writer) error {
	var err error
	switch {
	case head || r.status == 204 || r.status == 304:
		return nil
	case r.chunked:
		err = r.readChunks(br, scratch, sink)
	case r.length >= 0:
		err = r.copyN(br, scratch, sink, r.length)
	default:
		r.closes = true
		err = r.copyN(br, scratch, sink, math.MaxInt64)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil // the end of the connection is the end of the body
		}
	}
	if err != nil {
		return fmt.Errorf("after %d bytes of the answer's body: %w", r.body, err)
	}
	return nil
}

func (r *response) readChunks(br *bufio.Reader, scratch []byte, sink io.Writer) error {
	for {
		line, err := readLine(br)
		if err != nil {
			return err
		}
		if i := bytes.IndexByte(line, ';'); i >= 0 {
			line = line[:i]
		}
		n, err := strconv.ParseUint(string(bytes.TrimRight(line, " \t")), 16, 63)
		if err != nil {
			return fmt.Errorf("%w: chunk size %q", errHeader, line)
		}
		if n == 0 {
			return skipTrailers(br)
		}
		if err := r.copyN(br, scratch, sink, int64(n)); err != nil {
			return err
		}
		if line, err = readLine(br); err != nil {
			return err
		}
		if len(line) != 0 {
			return fmt.Errorf("%w: %q after a chunk", errHeader, line)
		}
	}
}

func skipTrailers(br *bufio.Reader) error {
	for {
		line, err := readLine(br)
		if err != nil || len(line) == 0 {
			return err
		}
	}
}

// copyN reads n bytes of the body through `scratch`, and writes them to `sink` unless that is
// nil. `scratch` is larger than br's buffer, so br copies a large body from the socket
// directly to `scratch`.
func (r *response) copyN(br *bufio.Reader, scratch []byte, sink io.Writer, n int64) error {
	for n > 0 {
		m, err := br.Read(scratch[:min(n, int64(len(scratch)))])
		r.body += int64(m)
		n -= int64(m)
		if m > 0 && sink != nil {
			if _, err := sink.Write(scratch[:m]); err != nil {
				return err
			}
		}
		if err != nil && n > 0 {
			return unexpected(err)
		}
	}
	return nil
}

// readLine reads one line and returns it without its line end, which is CRLF or LF. The line
// is valid until br is read again.
func readLine(br *bufio.Reader) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", errHeader, readBuffer)
		}
		return nil, unexpected(err)
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
