package audit

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Form begins an export in a form, and returns what writes an entry in it.
type Form func(w io.Writer) (write func(Entry) error, err error)

// Lines is the form of lines of JSON.
func Lines(w io.Writer) (func(Entry) error, error) {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return func(e Entry) error { return encoder.Encode(e) }, nil
}

// columns are the columns of the form CSV, in their order.
var columns = []string{
	"time", "kind", "actor", "address", "user_agent", "namespace", "repository", "tag", "digest", "policy", "run", "pulls", "request_id", "detail",
}

// formula finds where a formula begins: $1 comes before it. The last four characters are the wide forms of
// those before.
var formula = regexp.MustCompile(`(^|[;\t\r\n][ "]*)([=+\-@\t\r\n＝＋－＠])`)

// CSV is the form of RFC 4180, whose first line has the names of the columns. Programs that open it
// take cells that begin with certain characters for formulas, and clients choose some of these texts:
// such a cell gets an apostrophe before it. In many countries these programs separate cells by semicolons,
// so a cell may begin behind one too.
func CSV(w io.Writer) (func(Entry) error, error) {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	write := func(row []string) error {
		if err := out.Write(row); err != nil {
			return err
		}
		out.Flush() // to the writer below, which has a buffer
		return out.Error()
	}
	return func(e Entry) error {
		row := []string{
			e.Time.UTC().Format(time.RFC3339Nano), string(e.Kind), e.Actor, e.Address, e.UserAgent, e.Namespace, e.Repository, e.Tag,
			e.Digest.String(), idText(e.Policy), idText(e.Run), "", e.RequestID, "",
		}
		if e.Pulls > 0 {
			row[11] = strconv.Itoa(e.Pulls)
		}
		if e.Detail != nil {
			detail, err := json.Marshal(e.Detail)
			if err != nil {
				return err
			}
			row[13] = string(detail)
		}
		for i, cell := range row {
			row[i] = formula.ReplaceAllString(cell, "$1'$2")
		}
		return write(row)
	}, write(columns)
}

// idText is a UUID as text, "" for none.
func idText(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}
