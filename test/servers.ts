import { isNpmScript } from '../deploy/config/config.ts';
import { parentGone } from '../deploy/main.ts';
import { TEST_SETTINGS, testSetting } from './support/database.ts';
import { startServers, takeServerFlag } from './support/servers.ts';

/**
 * `npm run servers`: PostgreSQL and Temporal that stay up between test runs, until Ctrl-C. It prints what to paste into
 * the terminal that the tests are run in.
 */
const interrupted = new Promise<void>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => resolve());
  // npm ends at SIGHUP without passing it on.
  if (isNpmScript('servers')) void parentGone().then(resolve);
});
const stop = await startServers({ onServer: takeServerFlag(process.argv.slice(2)) });
try {
  for (const name of TEST_SETTINGS) console.log(`export ${name}='${testSetting(name)}'`);
  console.error(
    '\nPaste these lines where you run tests: npm test -- --only-tests FILE. Ctrl-C ends the servers.',
  );
  // A pending promise alone does not keep a program alive.
  const alive = setInterval(() => {}, 60_000);
  await interrupted;
  clearInterval(alive);
} finally {
  await stop();
}
process.exit();
