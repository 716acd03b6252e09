// Package e2e tests Gatehouse as it is used: the built program with real
// configurations, several gateways over one Redis, one key ring and one upload
// folder, an application in another language, a real browser, a real tus
// client, and servers that are paused and killed while they work.
//
// The tests need redis-server, chromium, node, npm and python3; a missing
// program fails the test with the command that installs it.
package e2e
