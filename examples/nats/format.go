package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var errMalformed = errors.New("malformed message")
var escapes = strings.NewReplacer(`\\`, `\`, `\n`, "\n")

// transaction reads the messages of one transaction. docs/standby.md has their form.
type transaction struct {
	channels  []string // those read so far
	nchannels int      // those that the transaction has
}

// read calls publish for each notification of one message. Any user can write a message
// with this prefix (pg_logical_emit_message), so nothing in it is trusted.
func (t *transaction) read(content []byte, publish func(channel, payload string) error) error {
	line, rest, _ := bytes.Cut(content, []byte{'\n'})
	head := strings.Fields(string(line))
	if len(head) != 6 || head[0] != "1" {
		return fmt.Errorf("%w: first line %.40q", errMalformed, line)
	}
	if head[5] == "0" { // nothing of this batch came before
		t.channels = nil
		t.nchannels, _ = strconv.Atoi(head[2])
	}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if len(t.channels) < t.nchannels {
			if len(line) == 0 || len(line) > 255 { // a name has 63 bytes, and a server may be built for more
				return fmt.Errorf("%w: channel %.40q", errMalformed, line)
			}
			t.channels = append(t.channels, unescape(line))
			continue
		}
		number, payload, _ := bytes.Cut(line, []byte{'\t'})
		i, err := strconv.Atoi(string(number))
		if err != nil || i < 0 || i >= len(t.channels) {
			return fmt.Errorf("%w: notification %.40q", errMalformed, line)
		}
		if err := publish(t.channels[i], unescape(payload)); err != nil {
			return err
		}
	}
	return nil
}

func unescape(text []byte) string {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text) // faster, and as most are
	}
	return escapes.Replace(string(text))
}

// token makes any name a token of a NATS subject. Each byte but ASCII letters, digits, "-"
// and "_" becomes "%" and two hexadecimal digits, as in a URL.
func token(name string) string {
	var b strings.Builder
	b.Grow(len(name))
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
