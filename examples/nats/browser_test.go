package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// browser is a Chromium without a window, driven by ChromeDriver (WebDriver).
type browser struct {
	t       testing.TB
	session string // its address
}

// call sends one command of WebDriver.
func (b *browser) call(method, path string, body, result any) {
	b.t.Helper()
	var sent []byte
	if body != nil {
		var err error
		sent, err = json.Marshal(body)
		check(b.t, err)
	}
	request, err := http.NewRequest(method, b.session+path, bytes.NewReader(sent))
	check(b.t, err)
	response, err := http.DefaultClient.Do(request)
	check(b.t, err)
	defer response.Body.Close()
	answer := struct{ Value json.RawMessage }{}
	check(b.t, json.NewDecoder(response.Body).Decode(&answer))
	if response.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %s", method, path, answer.Value)
	}
	if result != nil {
		check(b.t, json.Unmarshal(answer.Value, result))
	}
}

func startBrowser(t testing.TB) *browser {
	port := freePort(t)
	startProcess(t, nil, "chromedriver", fmt.Sprintf("--port=%d", port))
	b := &browser{t, fmt.Sprintf("http://127.0.0.1:%d/session", port)}
	waitUntil(t, "ChromeDriver answers", func() bool {
		response, err := http.Get(strings.TrimSuffix(b.session, "session") + "status")
		if err == nil {
			response.Body.Close()
		}
		return err == nil
	})
	var session struct{ SessionID string }
	b.call("POST", "", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"goog:chromeOptions": map[string]any{"args": []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
			"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--user-data-dir=" + folder(t)}}}}}, &session)
	b.session += "/" + session.SessionID
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the page: %s", script[string](b, "return document.body.innerText"))
		}
		b.call("DELETE", "", nil, nil)
	})
	return b
}

func (b *browser) open(address string) {
	b.call("POST", "/url", map[string]string{"url": address}, nil)
}

// script runs a function body and returns its result.
func script[T any](b *browser, text string) (result T) {
	b.call("POST", "/execute/sync", map[string]any{"script": text, "args": []any{}}, &result)
	return result
}

// expect waits until the page shows these payloads, oldest first.
func (b *browser) expect(payloads ...string) {
	b.t.Helper()
	var shown []string
	waitUntil(b.t, fmt.Sprintf("the page shows %q", payloads), func() bool {
		shown = script[[]string](b, "return [...document.querySelectorAll('#messages tr')].map((row) => row.cells[2].textContent).reverse()")
		return slices.Equal(shown, payloads)
	})
}

func (b *browser) waitForState(connected bool) {
	b.t.Helper()
	waitUntil(b.t, fmt.Sprintf("the page is connected: %t", connected), func() bool {
		return connected == script[bool](b, "return document.getElementById('state').classList.contains('connected')")
	})
}

// What README.md recommends: the browser may read one channel and nothing else.
const accounts = `
websocket { listen: "127.0.0.1:%d", no_tls: true }
authorization { users: [
	{ user: bridge, password: secret }
	{ user: browser, password: public, permissions: {
		publish: [
			"$JS.API.STREAM.INFO.pg_postgres"
			"$JS.API.CONSUMER.CREATE.pg_postgres.*.pg.postgres.a%%20b%%2E%%3E"
			"$JS.API.CONSUMER.MSG.NEXT.pg_postgres.*"
			"$JS.API.CONSUMER.DELETE.pg_postgres.*"
		]
		subscribe: "_INBOX.>"
	} }
] }
`

// The page of ../browser, from NOTIFY to the browser.
func TestBrowserShowsAChannelAndResumes(t *testing.T) {
	if os.Getenv("BRIDGE_TEST_BROWSER") == "" {
		t.Skip("BRIDGE_TEST_BROWSER is not set; it needs Chromium, and npm ci in ../browser")
	}
	websocket := freePort(t)
	p, n := startPostgres(t), startNATS(t, fmt.Sprintf(accounts, websocket), nats.UserInfo("bridge", "secret"))
	n.url = strings.Replace(n.url, "//", "//bridge:secret@", 1)
	startBridge(t, p.url(), n)
	waitUntil(t, "there is a stream", func() bool { _, err := n.js.Stream(t.Context(), streamName); return err == nil })
	pages := httptest.NewServer(http.FileServer(http.Dir("../browser")))
	t.Cleanup(pages.Close)
	page := func(channel string) string {
		return pages.URL + "/?" + url.Values{"channel": {channel}, "user": {"browser"}, "password": {"public"},
			"server": {fmt.Sprintf("ws://127.0.0.1:%d", websocket)}}.Encode()
	}
	notify := func(payload string) { p.exec(t, "SELECT pg_notify('a b.>', $1), pg_notify('other', $1)", payload) }

	notify("before the first visit")
	waitUntil(t, "it is in the stream", func() bool { return n.last(streamName) == 2 })
	b := startBrowser(t)
	b.open(page("a b.>"))
	b.waitForState(true)
	notify("one")
	notify("<b>two</b>\nlines")
	b.expect("one", "<b>two</b>\nlines")

	// While the page has no server.
	n.kill()
	b.waitForState(false)
	notify("three")
	n.start(t)
	b.expect("one", "<b>two</b>\nlines", "three")
	notify("four")
	b.expect("one", "<b>two</b>\nlines", "three", "four")

	// While there is no page.
	b.open("about:blank")
	notify("five")
	b.open(page("a b.>"))
	b.expect("five")
	notify("six")
	b.expect("five", "six")
	if gap := script[string](b, "return document.getElementById('gap').textContent"); gap != "" {
		t.Errorf("the page shows a gap: %s", gap)
	}

	// While there is no page, and the stream is shortened.
	b.open("about:blank")
	notify("removed")
	waitUntil(t, "it is in the stream", func() bool { return n.last(streamName) == 16 })
	s, err := n.js.Stream(t.Context(), streamName)
	check(t, err)
	check(t, s.Purge(t.Context()))
	b.open(page("a b.>"))
	b.waitForState(true)
	notify("seven")
	b.expect("seven")
	if gap := script[string](b, "return document.getElementById('gap').textContent"); gap == "" {
		t.Error("the page does not show the gap")
	}

	// Another channel is not for this user.
	b.open(page("other"))
	notify("eight")
	b.waitForState(false)
	b.expect()
}
