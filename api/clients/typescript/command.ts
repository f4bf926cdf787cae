#!/usr/bin/env node
// An old Node.js can't load the rest of the command, so this file imports it only after a check.
const version = process.versions.node;
const [major = 0, minor = 0] = version.split('.').map(Number);
if (major > 22 || (major === 22 && minor >= 13)) {
  const { main } = await import('./main.ts');
  process.exitCode = await main(process.argv.slice(2));
} else {
  console.error(
    `npi-email-enrichment needs Node.js 22.13 or later. This is ${version}. Get a newer one at https://nodejs.org.`,
  );
  process.exitCode = 1;
}
