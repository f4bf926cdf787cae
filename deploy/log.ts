import { asyncLocalStorage } from '@temporalio/activity';
import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { traceOfLine } from '../db/connection/traces.ts';
import { serviceVersion, temporalUi } from './config/config.ts';
import { printableLines } from './printable.ts';
import { grpcFailure } from './temporal/client.ts';

/**
 * Returns a logger that writes JSON lines.
 *
 * Callers pass only ids and numbers. An error is logged as its type, code, and stack frames,
 * because its message may contain user data. An error from Temporal is logged with its details,
 * which contain no user data. The logger adds the version of the code, and
 * these ids:
 * - in an activity, the ids of the workflow and of its run. The workflow id is usually the id of
 *   the batch, request, or delivery that the workflow handles
 * - if traces are on, the trace ids of the batch that the line is about
 * - if TEMPORAL_UI_URL is set, a link to the workflow in the Temporal UI
 * @param destination the stream to write to. The default is standard output
 */
export function createLog(
  name: string,
  level: string,
  destination?: DestinationStream,
): Logger {
  const ui = temporalUi();
  const options = {
    name,
    level,
    serializers: { err: serializeError },
    base: { pid: process.pid, 'service.version': serviceVersion() },
    mixin: idsOfLine,
    formatters: ui === null ? {} : linkingTo(ui),
    // Escapes control characters, because logs are read in terminals. The line is still JSON with
    // the same values.
    hooks: { streamWrite: printableLines },
  };
  if (destination === undefined) return pino(options);
  return pino(options, destination);
}

/** Returns a formatter that adds a link to the Temporal UI to each line about a workflow. */
function linkingTo(ui: string) {
  const log = (line: Record<string, unknown>) => {
    // The id of a batch is also the id of its workflow.
    const id = line.workflow_id ?? line.batch_id;
    if (!id) return line;
    return { ...line, temporal: `${ui}/${id}` };
  };
  return { log };
}

function idsOfLine(line: object) {
  const run = asyncLocalStorage.getStore()?.info.workflowExecution;
  if (!run) return traceOfLine(line);
  return { workflow_id: run.workflowId, run_id: run.runId, ...traceOfLine(line) };
}

function serializeError(error: unknown) {
  if (!(error instanceof Error)) return { type: typeof error };
  const { type, stack } = stdSerializers.err(error);
  const frames = stack.split('\n').filter((line) => line.trimStart().startsWith('at '));
  // For a gRPC error, the code is a property of `error.cause`.
  const code = codeOf(error) ?? codeOf(error.cause);
  return { type, code, details: detailsOf(error), stack: frames.join('\n') };
}

/** Returns why a call to Temporal failed, or undefined for any other error. */
function detailsOf(error: Error): string | undefined {
  // An error of the worker's native connection has all details in its message.
  if (error.name === 'TransportError') return error.message;
  return grpcFailure(error)?.details;
}

function codeOf(error: unknown): string | number | undefined {
  if (!(error instanceof Error) || !('code' in error)) return undefined;
  const { code } = error;
  return typeof code === 'string' || typeof code === 'number' ? code : undefined;
}
