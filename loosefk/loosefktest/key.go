package loosefktest

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// KeyValue is the type in which functions for NewParent and NewChild handle a parent's key:
// an integer, a text, or a uuid as a text or as an array of 16 bytes.
type KeyValue interface {
	~int | ~int16 | ~int32 | ~int64 | ~string | ~[16]byte
}

// keyString writes a key as PostgreSQL reads it.
func keyString[K KeyValue](key K) string {
	v := reflect.ValueOf(key)
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Array:
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		return hex.EncodeToString(b)
	default:
		return strconv.FormatInt(v.Int(), 10)
	}
}

// keyOf reads a key that PostgreSQL wrote.
func keyOf[K KeyValue](text string) (key K, err error) {
	v := reflect.ValueOf(&key).Elem()
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Array:
		b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(b) != v.Len() {
			return key, fmt.Errorf("NewChild takes a uuid of 16 bytes, and the parent's key is %q", text)
		}
		reflect.Copy(v, reflect.ValueOf(b))
	default:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return key, fmt.Errorf("NewChild takes a parent's key as %s, and it is %q", v.Type(), text)
		}
		v.SetInt(n)
	}
	return key, nil
}
