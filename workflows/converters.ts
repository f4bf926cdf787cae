import { DefaultFailureConverter, defaultPayloadConverter, type Payload } from '@temporalio/common';

// Converters for the values and failures in histories. The SDK requires these two export names.

/**
 * Decodes a malformed payload to undefined, because a malformed signal must not stop the workflow
 * that receives it.
 */
export const payloadConverter = {
  toPayload: (value: unknown) => defaultPayloadConverter.toPayload(value),
  fromPayload(payload: Payload): unknown {
    try {
      return defaultPayloadConverter.fromPayload(payload);
    } catch {
      return undefined;
    }
  },
};

/**
 * Removes stack traces from failures: people read histories, and a trace names folders on the
 * worker's machine.
 */
class FailureConverter extends DefaultFailureConverter {
  override errorToFailure(...args: Parameters<DefaultFailureConverter['errorToFailure']>) {
    return { ...super.errorToFailure(...args), stackTrace: '' };
  }
}

export const failureConverter = new FailureConverter();
