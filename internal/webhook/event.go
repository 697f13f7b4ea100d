package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db"
)

// MaxBody bounds the body of a notice, in bytes.
const MaxBody = 256 << 10

// Event is what a notice reports.
type Event struct {
	// ID identifies the notice, so that receivers recognise repeats. Zero: a new id is
	// made. While a notice with this ID is kept, another one with the same ID isn't queued.
	ID uuid.UUID
	// Type names the event and the form of Data: words of letters, digits and _,
	// with dots between them, "autoprune.started".
	Type string
	Time time.Time // when it happened; zero: now
	Data any       // a JSON object; nil: an empty one
}

// Queue writes the notice in the caller's transaction, so that the notice is sent exactly
// if the transaction commits. Call Wake after the commit. Without a configured URL Queue
// does nothing. If the notice's type is invalid or its body too large, Queue returns an
// error and writes nothing.
func (s *Sender) Queue(ctx context.Context, tx db.Querier, e Event) error {
	if !s.Configured() {
		return nil
	}
	body, err := e.body()
	if err != nil {
		return fmt.Errorf("queueing the notice %q: %w", e.Type, err)
	}
	if e.ID == uuid.Nil {
		e.ID = uuid.New()
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO webhooknotices (id, event, body) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO NOTHING`, e.ID, e.Type, body)
	if err != nil {
		return fmt.Errorf("queueing the notice %s: %w", e.Type, err)
	}
	return nil
}

var eventType = regexp.MustCompile(`^[a-zA-Z0-9_]+(\.[a-zA-Z0-9_]+)*$`)

// body returns the JSON that is sent. It is made once, since its bytes are signed.
func (e Event) body() (string, error) {
	if len(e.Type) > 128 || !eventType.MatchString(e.Type) {
		return "", errors.New("its type must be up to 128 letters, digits and _, with single dots between them")
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Data == nil {
		e.Data = struct{}{}
	}
	b, err := json.Marshal(struct {
		Type      string `json:"type"`
		Timestamp string `json:"timestamp"`
		Data      any    `json:"data"`
	}{e.Type, e.Time.UTC().Format(time.RFC3339Nano), e.Data})
	if err != nil {
		return "", fmt.Errorf("writing its data as JSON: %w", err)
	}
	if len(b) > MaxBody {
		return "", fmt.Errorf("it has %d bytes, %d are possible; send less data, and where to ask for the rest", len(b), MaxBody)
	}
	// PostgreSQL takes valid UTF-8 only, which a json.RawMessage may not be.
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}
