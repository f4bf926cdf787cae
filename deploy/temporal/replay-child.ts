import { on } from 'node:events';
import inspector from 'node:inspector';
import { Worker } from 'node:worker_threads';
import { pino } from 'pino';
import { OperatorProblem } from '../../db/errors.ts';
import type { Run } from './history.ts';
import { replay } from './replay.ts';
import type { ChildMessage, ChildOptions } from './replay-process.ts';
import { installRuntime } from './workers.ts';

// The child process that replays runs for `replayInChild`.

/**
 * Ends this process when its parent has ended, even while a workflow loops. Only another thread can
 * do that.
 */
const GUARD = `
  const parent = ${process.ppid};
  setInterval(() => process.ppid === parent || process.kill(process.pid, 'SIGKILL'), 1000);
`;

new Worker(GUARD, { eval: true }).unref();
// This process reads no settings, so that only its parent reports a wrong one.
installRuntime(pino({ level: 'silent' }));
const messages = on(process, 'message');
const { code, stopAt } = await next<ChildOptions>();
if (stopAt !== null) inspector.open(undefined, undefined, true);
send({ misfit: null, throws: false });
try {
  for await (const { misfit, throws } of replay(code, runs(), stopAt)) {
    send({ misfit, throws });
  }
} catch (error) {
  if (error instanceof OperatorProblem) send({ problem: error.message });
  else send({ error: error as Error });
}

async function* runs(): AsyncGenerator<Run> {
  for (;;) yield await next<Run>();
}

async function next<Message>(): Promise<Message> {
  const { value } = await messages.next();
  return value?.[0];
}

function send(message: ChildMessage): void {
  process.send?.(message);
}
