import { isNpmScript } from '../deploy/config/config.ts';
import { parentGone } from '../deploy/main.ts';
import { announceServers } from './support/kept-servers.ts';
import { startServers, takeServerFlag } from './support/servers.ts';

/**
 * `npm run servers`: starts PostgreSQL and Temporal, which stay up between test runs, until Ctrl-C.
 * Test runs in this folder find them automatically.
 */
const interrupted = new Promise<void>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    process.on(signal, () => resolve());
  // npm ends on SIGHUP without forwarding it.
  if (isNpmScript('servers')) void parentGone().then(resolve);
});
const stop = await startServers({ onServer: takeServerFlag(process.argv.slice(2)) });
const forget = announceServers();
try {
  console.log(
    'The servers are up, and test runs in this folder use them: npm test -- --only-tests FILE',
  );
  console.log('Ctrl-C ends them.');
  // A pending promise alone does not keep a program alive.
  const alive = setInterval(() => {}, 60_000);
  await interrupted;
  clearInterval(alive);
} finally {
  forget();
  await stop();
}
process.exit();
