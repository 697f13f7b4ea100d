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
	// ID identifies the notice, so that receivers recognise repeats. Zero: Queue makes a
	// new id. If a notice with this ID already exists in the table, Queue queues no second
	// one.
	ID uuid.UUID
	// Type names the event, and thereby the form of Data. It consists of words of letters,
	// digits and _, with dots between them, such as "autoprune.started".
	Type string
	Time time.Time // when it happened; zero: now
	Data any       // a JSON object; nil: an empty one
}

// Queue writes the notice in the caller's transaction, so the notice is sent exactly if
// this transaction commits. The caller should call Wake after the commit. If no URL is
// configured, Queue does nothing. If the event's type is invalid or the notice's body too
// large, Queue returns an error and writes nothing.
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

// body returns the JSON that is sent. The database stores it, so that every attempt sends
// and signs the same bytes.
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
	// PostgreSQL accepts only valid UTF-8 as text, and a json.RawMessage in Data may
	// contain other bytes.
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}
