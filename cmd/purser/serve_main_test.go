package main

import (
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func testMain2(m *testing.M) { dbtest.Main(m) }
